"""`python -m torchrelay` is the `torchrelay` program."""

from torchrelay.cli.app import main

main()
