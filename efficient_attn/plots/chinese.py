"""The words of the figures in Chinese, by the English ones; templates keep the names in braces."""

from __future__ import annotations

CHINESE = {
    # What is measured, and how a setting is written.
    "self-attention": "自注意力",
    "causal self-attention": "因果自注意力",
    "cross-attention": "交叉注意力",
    "causal cross-attention": "因果交叉注意力",
    "forward": "前向",
    "forward+backward": "前向+反向",
    "training step": "训练步",
    "prefill": "预填充",
    "decoding, per token": "解码，每个词元",
    "batch {batch}": "批大小 {batch}",
    "{heads} heads × {head_dim}": "{heads} 个头 × {head_dim}",
    "{name}": "{name}",
    "{threads} thread": "{threads} 线程",
    "{threads} threads": "{threads} 线程",
    "{scope} scope": "范围 {scope}",
    "compiled": "已编译",
    "{keys} keys": "{keys} 个键",
    "{padding:.0%} padding": "填充 {padding:.0%}",
    # Axes and legends.
    "↓ lower is better": "↓ 越低越好",
    "↑ higher is better": "↑ 越高越好",
    "length N": "长度 N",
    "time": "时间",
    "peak memory": "峰值内存",
    "median ms": "中位数，毫秒",
    "nothing measured": "没有测量值",
    "not measured": "未测量",
    "unsupported:": "不支持：",
    "failed:": "失败：",
    "growth as N, N²": "按 N、N² 增长",
    "dashed, hollow: predicted": "虚线、空心：预测值",
    "dashed, pale: predicted": "虚框、浅色：预测值",
    "stripe: may be as fast": "下方色条：可能同样快",
    "never fastest:": "从未最快：",
    "faster (thick)": "更快（粗）",
    "no difference shown": "看不出差别",
    "slower (thin)": "更慢（细）",
    "crossing, 95 % interval": "交叉点，95 % 区间",
    "share of the limit, %": "达到上限的比例，%",
    "bound by arithmetic": "受算力限制",
    "bound by memory": "受内存带宽限制",
    "the limit": "上限",
    "training, s": "训练时间，秒",
    "peak memory, MiB": "峰值内存，MiB",
    "state of decoding after {length} tokens, KiB": "{length} 个词元后的解码状态，KiB",
    "unknown": "未知",
    "forward+backward at N={length}, {unit}": "前向+反向，N={length}，{unit}",
    "(off the axis)": "（超出坐标轴）",
    # Titles.
    "Cost over length: medians, 95 % bands": "开销随长度的变化：中位数与 95 % 区间带",
    "Fastest variant by length; number: times as fast as full": (
        "各长度上最快的变体；数字：速度为 full 的多少倍"
    ),
    "Where each is faster than {baseline}": "各变体在哪些长度上快于 {baseline}",
    "Share of what the machine's measured peaks allow": "达到本机实测峰值所允许速度的比例",
    "Accuracy: mean over seeds, 95 % interval, single seeds faint": (
        "准确度：多个随机种子的均值与 95 % 区间，浅色为单个种子"
    ),
    "Accuracy against time: the front solid, the rest faded": (
        "准确度与时间：前沿为实色，其余为淡色"
    ),
    "Accuracy against memory: the front solid, the rest faded": (
        "准确度与内存：前沿为实色，其余为淡色"
    ),
    "Accuracy against the state of decoding: mean, 95 % interval": (
        "准确度与解码状态：均值与 95 % 区间"
    ),
    "What a knob buys and what it costs: mean, 95 % interval": (
        "旋钮换来什么、代价多少：均值与 95 % 区间"
    ),
    # Who sees whom.
    "self-attention, not causal": "自注意力，非因果",
    "cross-attention, not causal": "交叉注意力，非因果",
    "causal cross-attention, aligned at the last key": "因果交叉注意力，按最后一个键对齐",
    "queries N={N}, keys M={M}": "查询 N={N}，键 M={M}",
    "no options": "没有选项",
    "Who sees whom: a row is a query, a column is a key": "谁看见谁：行是查询，列是键",
    "Weight of a key (column) in the output of a query (row)": "键（列）在查询（行）输出中的权重",
    "by head": "按头",
    "first {shown} of {heads} heads": "{heads} 个头中的前 {shown} 个",
    "all are zero": "全部为零",
    "each row sums to 1": "每行之和为 1",
    "rows sum to {low:.2g} … {high:.2g}": "各行之和为 {low:.2g} … {high:.2g}",
    "materialised for this figure from the outputs for one-hot values": (
        "为本图由独热值的输出还原"
    ),
    "materialised for this figure; the method never forms them": (
        "为本图算出；该方法本身从不形成权重"
    ),
    "seen": "看见",
    "not seen": "看不见",
    "no padding": "没有填充",
    "no padded example: {name} takes no key padding mask": (
        "没有填充示例：{name} 不接受键填充掩码"
    ),
    "the last {missing} keys are padding": "最后 {missing} 个键是填充",
    "padding, hidden from all": "填充，对所有查询隐藏",
    "below it: queries of padding": "线下方：填充位置的查询",
    "{count} keys per query": "每个查询看见 {count} 个键",
    "{count} key per query": "每个查询看见 {count} 个键",
    "{low} to {high}": "{low} 到 {high}",
    "query": "查询",
    "key": "键",
    "the {rows}×{columns} grid of tokens": "{rows}×{columns} 的词元网格",
    "equal numbers see the same keys": "数字相同者看见相同的键",
    "column": "列",
    "row": "行",
    "head {head}": "头 {head}",
    "weight, white is 0": "权重，白色为 0",
    "weight, root scale": "权重，平方根刻度",
}
