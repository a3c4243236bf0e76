"""What stands around attention: positions, encoder and decoder blocks, small models."""

from efficient_attn.nn.block import StochasticDepth
from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.dual_encoder import DualEncoder
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.feedforward import ShortConvolution
from efficient_attn.nn.models import ImageClassifier, LanguageModel, SequenceClassifier
from efficient_attn.nn.positions import LearnedPositions, SinusoidalPositions, make_positions
from efficient_attn.nn.swin import SwinTransformer
from efficient_attn.nn.transformer import Transformer

__all__ = [
    "DualEncoder",
    "ImageClassifier",
    "LanguageModel",
    "LearnedPositions",
    "SequenceClassifier",
    "ShortConvolution",
    "SinusoidalPositions",
    "StochasticDepth",
    "SwinTransformer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "make_positions",
]
