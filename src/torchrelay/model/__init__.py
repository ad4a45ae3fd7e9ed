"""What is trained: ordinary PyTorch modules behind the Task protocol."""
