"""The CUDA kernels of onnxruntime, for the operators that an artifact may hold.

Facts of onnxruntime-gpu 1.31.1, for ONNX's operator set 18: its documentation (OperatorKernels.md,
CUDAExecutionProvider), which agrees with what the provider itself said of 591 pairs of operator and
type. An operator that stands nowhere here has no kernel.
"""

# What types the kernels are for, by the names that ONNX gives them; where a name is missing, for
# all of the operator's types.
_OPERATORS_BY_TYPES = {
    "": """
        Abs Add And AveragePool Cast Compress Concat ConstantOfShape Conv ConvTranspose Cos Div
        Dropout Elu Erf Exp Expand Flatten GRU Gather GatherElements GlobalAveragePool GlobalMaxPool
        HardSigmoid HardSwish Identity If InstanceNormalization IsInf IsNaN LSTM Loop MaxPool Mul
        Neg Not Or RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reshape
        ReverseSequence Round Scan ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Size
        Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Transpose
        Trilu Unsqueeze Xor
    """,
    "T: float16 float double": """
        ArgMax ArgMin Ceil Einsum Floor LeakyRelu Log LogSoftmax PRelu Reciprocal ReduceLogSum
        ReduceLogSumExp ReduceSumSquare
    """,
    "T: float16 float double int32 int64 uint32 uint64": """
        CumSum Greater GreaterOrEqual Less LessOrEqual
    """,
    "T: float16 float double int32": """
        ReduceL1 ReduceL2 ReduceMean ReduceProd
    """,
    "T: float16 float double bfloat16": """
        Gemm MatMul Relu
    """,
    "T: float16 float double bfloat16 int32 int64 uint32 uint64": """
        Max Min Mod
    """,
    "T: float16 float double int8 int32 int64 uint8": """
        ReduceMax ReduceMin
    """,
    "T: float16 float double bfloat16 int32 int64": """
        ReduceSum Tile
    """,
    "T: float16 float double; T1: float16 float double; T2: float16 float double": """
        BatchNormalization
    """,
    "T: float16 float double int8 int64 uint8 uint64": """
        Clip
    """,
    "T: int8 uint8": """
        DequantizeLinear
    """,
    "T: bool float16 float double int32 int64 uint32 uint64": """
        Equal
    """,
    "T1: float double int32 int64 uint64; T2: float double int32 int64 uint64": """
        EyeLike
    """,
    "T: bool float16 float double bfloat16 int64": """
        GatherND
    """,
    "U: float": """
        LayerNormalization
    """,
    "T: float16 float": """
        LpNormalization
    """,
    "T1: int8; T2: int8": """
        MatMulInteger
    """,
    "T: bool float16 float int32 int64 uint8": """
        NonZero
    """,
    "T1: int32 int64; T2: int32 int64; T3: float16 float int64": """
        OneHot
    """,
    "T: bool float16 float double": """
        Pad
    """,
    "T1: float16 float double bfloat16 int32 int64": """
        Pow
    """,
    "T1: float": """
        QuantizeLinear
    """,
    "T: float16 float double int8 int16 int32 int64 uint8": """
        TopK
    """,
    "T: float16 float double bfloat16 int32 int64 uint8": """
        Where
    """,
}


def _read(spec):
    """`{"T": {"float", "double"}}` of "T: float double"."""
    parts = (part.partition(": ") for part in spec.split("; ") if part)
    return {name: frozenset(types.split()) for name, _, types in parts}


# By operator: the types of its kernels, by ONNX's names for them.
CUDA_KERNELS = {
    operator: _read(spec)
    for spec, operators in _OPERATORS_BY_TYPES.items()
    for operator in operators.split()
}
