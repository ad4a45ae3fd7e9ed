"""What no test of a store may do: leave this machine."""

import os

# Without keys obstore would ask the machine's metadata service, which is not of this machine: no test may.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:1"
os.environ["GOOGLE_BEARER_TOKEN"] = "of-nobody"
