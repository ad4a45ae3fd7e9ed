"""litData: its chunks (tokens with its token loader), shuffle on, its own data loader.

Over plain http its object client refuses the endpoint, for want of an option that cannot be given;
the option is put in here, so that the rest can be measured.
"""

import os
from collections.abc import Iterator
from typing import Any

import meter
import workload


def prepare() -> None:
    from litdata.streaming import downloader

    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def make_row(number: int) -> Any:
    import torch

    return torch.from_numpy(workload.row(number))


def make_image(number: int) -> Any:
    return {"image": workload.image(number)}


def convert(job: meter.Job) -> None:
    from litdata import TokensLoader, optimize

    if job.workload == "small":
        _write_numbers(job)
        return
    make = make_row if job.workload == "tok" else make_image
    how = (
        {"chunk_size": workload.ROWS_PER_SHARD * workload.ROW, "item_loader": TokensLoader(workload.ROW)}
        if job.workload == "tok"
        else {"chunk_bytes": workload.SHARD_BYTES}
    )
    optimize(
        make,
        list(range(job.samples)),
        job.place,
        num_workers=1,
        keep_data_ordered=True,
        verbose=False,
        **how,
    )


def _write_numbers(job: meter.Job) -> None:
    """By the writer beneath `optimize`, which is too slow for ten million."""
    from litdata.streaming import Cache

    cache = Cache(job.place, chunk_bytes=workload.SHARD_BYTES)
    for number in range(job.samples):
        cache._add_item(number, {"number": number})
    cache.done()
    cache.merge()


class LitData:
    """The package's loader; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

        how = {"item_loader": TokensLoader(workload.ROW)} if job.workload == "tok" else {}
        if job.action == "ids":  # its own default for several ranks, which a resumed run must repeat
            how |= {"drop_last": job.world > 1 or job.skip > 0}
        if job.is_remote:
            how |= {"cache_dir": job.cache, "storage_options": _storage()}
        self._workload = job.workload
        self._dataset = StreamingDataset(job.place, shuffle=True, seed=1, **how)
        self._loader = StreamingDataLoader(self._dataset, batch_size=job.share, num_workers=job.workers)
        if state is not None:
            self._loader.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        return iter(self._loader)

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch) if self._workload == "tok" else len(next(iter(batch.values())))

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._workload == "img":
            return [workload.image_number(image) for image in batch["image"]]
        return (batch[:, 0] if self._workload == "tok" else batch["number"]).tolist()

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return self._loader.state_dict()


def _storage() -> dict[str, Any]:
    return {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "region_name": os.environ["AWS_REGION"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }


def deep(job: meter.Job, samples: int) -> Any:
    """Two ranks before, one now: with as many as before it skips whole chunks."""
    opened = LitData(job, None)
    for batch in opened.epoch():
        opened.size(batch)
        break
    state = opened.state()
    dataset = state["dataset"]
    dataset["num_samples_yielded"] = samples // 2
    dataset["sample_in_epoch"] = samples
    dataset["world_size"] = dataset["initial_world_size"] = dataset["num_canonical_nodes"] = 2
    dataset["initial_batch_size"] = dataset["batch_size"] = job.batch // 2
    state["num_samples_yielded"] = {"0": samples // 2}
    return state


if __name__ == "__main__":
    meter.run(meter.Loader(packages=("litdata",), convert=convert, open=LitData, deep=deep, prepare=prepare))
