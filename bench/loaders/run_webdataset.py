"""webdataset: tar files, shards in random order and a buffer of 1,000 samples.

From an object store it reads through its own `pipe:` of curl, with addresses that are signed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meter
import workload


def convert(job: meter.Job) -> None:
    import webdataset

    make = {
        "tok": lambda number: workload.row(number).tobytes(),
        "img": workload.image,
        "small": lambda number: number.to_bytes(8, "little"),
    }[job.workload]
    place = Path(job.place)
    place.mkdir(parents=True, exist_ok=True)
    with webdataset.ShardWriter(str(place / "%06d.tar"), maxsize=workload.SHARD_BYTES, verbose=0) as writer:
        for number in range(job.samples):
            writer.write({"__key__": f"{number:09d}", "bin": make(number)})


class WebDataset:
    """The package's pipeline; see `meter.Opened`."""

    def __init__(self, job: meter.Job, state: Any) -> None:
        import webdataset

        urls = signed(job.place) if job.is_remote else sorted(map(str, Path(job.place).glob("*.tar")))
        dataset = webdataset.WebDataset(
            urls,
            shardshuffle=len(urls),
            nodesplitter=webdataset.split_by_node,
            seed=1,
            empty_check=False,
        )
        decode = _as_row if job.workload == "tok" else _as_is
        self._workload = job.workload
        dataset = dataset.shuffle(1000).to_tuple("bin").map_tuple(decode).batched(job.share)
        self._loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=job.workers)

    def epoch(self) -> Iterator[Any]:
        """See `meter.Opened.epoch`."""
        return iter(self._loader)

    def size(self, batch: Any) -> int:
        """See `meter.Opened.size`."""
        return len(batch[0])

    def ids(self, batch: Any) -> list[int]:
        """See `meter.Opened.ids`."""
        if self._workload == "tok":
            return batch[0][:, 0].tolist()
        return [workload.image_number(data) for data in batch[0]]

    def state(self) -> Any:
        """See `meter.Opened.state`."""
        return None


def _as_row(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, np.int32)


def _as_is(data: bytes) -> bytes:
    return data


def signed(place: str) -> list[str]:
    """A command for each tar of a prefix that writes it to its output."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name=os.environ["AWS_REGION"]
    )
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    found = client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    names = sorted(entry["Key"] for entry in found if entry["Key"].endswith(".tar"))
    links = [
        client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": name}) for name in names
    ]
    return [f"pipe:curl -sSf '{link}'" for link in links]


def prepare() -> None:
    import webdataset  # noqa: F401


if __name__ == "__main__":
    meter.run(meter.Loader(packages=("webdataset",), convert=convert, open=WebDataset, prepare=prepare))
