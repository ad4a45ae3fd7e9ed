"""`python -m torchrelay.train recipe.yaml [--set key=value] [--fresh]`: one rank.

Started by `torchrelay train`, or by torchrun:
    torchrun --nproc-per-node 4 -m torchrelay.train recipe.yaml
"""

import argparse
import os
import sys
import traceback

from torchrelay.core.environment import read_environment
from torchrelay.core.errors import RelayError
from torchrelay.observe.failure import report_failure
from torchrelay.recipe.load import load_recipe
from torchrelay.train.rank import run_rank
from torchrelay.train.signal import die_with_launcher


def main(arguments: list[str]) -> int:
    """Run one rank and return its exit code; a failure is reported for the launcher and on stderr."""
    parser = argparse.ArgumentParser(prog="python -m torchrelay.train")
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--fresh", action="store_true", help="start a new run under a new id")
    options = parser.parse_args(arguments)
    environment = None
    try:
        environment = read_environment()
        die_with_launcher(environment.parent_pid)
        recipe = load_recipe(options.recipe, options.settings)
        return int(run_rank(recipe, environment, fresh=options.fresh))
    except Exception as error:  # noqa: BLE001 - the outermost frame: everything is reported here
        rank = environment.rank if environment else 0
        record = report_failure(environment.error_folder if environment else None, error, rank=rank)
        text = str(error) if isinstance(error, RelayError) else traceback.format_exc()
        sys.stderr.write(f"rank {rank} on {record.host}: {text}\n")
        return record.exit_code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Other threads (gloo, obstore) may still run; a rank must not linger after its last word.
    os._exit(code)
