"""After the last step: write the final model from the final checkpoint. On rank 0, alone."""

import json

from torchrelay.checkpoint.export import DONE_FILE, Export, export_model, final_model_prefix
from torchrelay.core.errors import CheckpointError, NotFoundError
from torchrelay.core.record import ExportRecord
from torchrelay.observe.journal import Sink
from torchrelay.train.session import Session


def export_final(session: Session, sink: Sink) -> None:
    """Write `final-models/<run>/`, unless the newest checkpoint is there already. Touches no other rank."""
    usable = session.shelf.usable()
    if not usable:
        raise CheckpointError(f"run {session.run.run!r} has no checkpoint to export")
    commit = usable[0]
    if _exported(session) == commit.checkpoint:
        return
    format_ = session.task.export()
    files = dict(session.training.files)
    if format_.config is not None:
        files["config.json"] = json.dumps(format_.config, indent=1).encode()
    export = Export(
        convert=format_.convert,
        extra=format_.extra,
        files=files,
        lineage={
            "run": session.run.run,
            "recipe": session.recipe.model_dump(mode="json"),
            "recipe_hash": session.run.recipe_hash,
            "dataset_version": session.training.plan.version,
            "code": session.run.code,
        },
    )
    where = f"{session.store.url}/{final_model_prefix(session.run.run)}"
    try:
        num_bytes = export_model(session.shelf, commit, session.shelf.read_manifest(commit), export)
    except OSError as error:  # the disk is full
        raise CheckpointError(
            f"the run is finished, but its model could not be written to {where}: {error.strerror}",
            hint="free some space and start again: only the export is done then",
        ) from error
    sink.write(ExportRecord(step=commit.step, where=where, bytes=num_bytes, attempt=session.attempt))


def _exported(session: Session) -> str | None:
    """Checkpoint of the export that is there, or None."""
    try:
        content = session.store.get(f"{final_model_prefix(session.run.run)}/{DONE_FILE}")
        return str(json.loads(content)["checkpoint"])
    except (NotFoundError, ValueError, KeyError):
        return None
