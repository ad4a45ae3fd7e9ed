"""The sizes of a decoder, and the number of its parameters in closed form. Pure, without torch."""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "gpt2"]
Gelu = Literal["exact", "tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Everything that decides the tensors and the arithmetic of a decoder; all combinations are checked."""

    architecture: Architecture
    layers: int
    width: int
    """Size of a token's vector; a multiple of `heads`."""
    heads: int
    kv_heads: int
    """Heads of keys and values; divides `heads`, and equals it in gpt2."""
    feed_forward: int
    vocabulary: int
    context: int
    """Longest sequence in tokens."""
    tied: bool
    """The output head is the embedding."""
    bias: bool
    """Linear layers and norms have a bias; always False in llama."""
    gelu: Gelu
    """Which GELU gpt2 uses; llama has none."""
    rope_theta: float
    """Base of the rotary frequencies; without meaning in gpt2."""
    norm_eps: float
    dropout: float

    @property
    def head_size(self) -> int:
        """Size of one head's vector."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Size of all keys of a token."""
        return self.kv_heads * self.head_size

    def num_parameters(self) -> int:
        """Trainable numbers; a tied head counts once."""
        outer = self.vocabulary * self.width * (1 if self.tied else 2)
        if self.architecture == "llama":
            return outer + self.layers * self._llama_block() + self.width
        norm = self.width * (2 if self.bias else 1)
        return outer + self.context * self.width + self.layers * self._gpt2_block(norm) + norm

    def _llama_block(self) -> int:
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_width
        return attention + 3 * self.width * self.feed_forward + 2 * self.width

    def _gpt2_block(self, norm: int) -> int:
        biases = 3 * self.width + self.width + self.feed_forward + self.width
        matrices = 4 * self.width * self.width + 2 * self.width * self.feed_forward
        return matrices + 2 * norm + (biases if self.bias else 0)


def default_feed_forward(architecture: Architecture, width: int) -> int:
    """llama: 8/3 of the width, rounded up to a multiple of 32. gpt2: 4 times the width."""
    return 4 * width if architecture == "gpt2" else -(-8 * width // 96) * 32
