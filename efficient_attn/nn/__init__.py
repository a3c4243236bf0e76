"""What stands around attention: positions, encoder and decoder blocks, small models."""

from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.feedforward import ShortConvolution
from efficient_attn.nn.generation import Generated, generate
from efficient_attn.nn.models import ImageClassifier, LanguageModel, SequenceClassifier
from efficient_attn.nn.positions import LearnedPositions, SinusoidalPositions, make_positions

__all__ = [
    "Generated",
    "ImageClassifier",
    "LanguageModel",
    "LearnedPositions",
    "SequenceClassifier",
    "ShortConvolution",
    "SinusoidalPositions",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "generate",
    "make_positions",
]
