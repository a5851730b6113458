"""Primitives whose results have an entry for each entry of their operands."""

POINTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bitcast_convert_type", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag",
    "integer_pow", "is_finite", "layer_boundary", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "name", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "pow", "real", "reduce_precision",
    "rem", "round", "rsqrt", "select_n", "sharding_constraint", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
)  # fmt: skip
