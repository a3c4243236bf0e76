"""What stands around attention: positions, encoder and decoder blocks, small models."""

from efficient_attn.nn.block import StochasticDepth
from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.dual_encoder import DualEncoder
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.feedforward import ShortConvolution
from efficient_attn.nn.generation import Generated, generate
from efficient_attn.nn.language_model import LanguageModel
from efficient_attn.nn.mask_predict import MaskPredict
from efficient_attn.nn.models import ImageClassifier, SequenceClassifier
from efficient_attn.nn.positions import LearnedPositions, SinusoidalPositions, make_positions
from efficient_attn.nn.seq2seq import Seq2Seq
from efficient_attn.nn.swin import SwinTransformer
from efficient_attn.nn.transformer import Transformer

__all__ = [
    "DualEncoder",
    "Generated",
    "ImageClassifier",
    "LanguageModel",
    "LearnedPositions",
    "MaskPredict",
    "Seq2Seq",
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
    "generate",
    "make_positions",
]
