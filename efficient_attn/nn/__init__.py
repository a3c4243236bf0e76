"""What stands around attention: positions, encoder and decoder blocks, small models."""

from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.dual_encoder import DualEncoder
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.feedforward import ShortConvolution
from efficient_attn.nn.models import ImageClassifier, LanguageModel, SequenceClassifier
from efficient_attn.nn.positions import LearnedPositions, SinusoidalPositions, make_positions
from efficient_attn.nn.swin import SwinTransformer

__all__ = [
    "DualEncoder",
    "ImageClassifier",
    "LanguageModel",
    "LearnedPositions",
    "SequenceClassifier",
    "ShortConvolution",
    "SinusoidalPositions",
    "SwinTransformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "make_positions",
]
