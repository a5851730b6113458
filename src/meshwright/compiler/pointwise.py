"""Primitives whose results have an entry for each entry of their operands."""

POINTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type",
    "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite",
    "layer_boundary", "le", "le_to", "lgamma", "log", "log1p", "logistic", "lt", "lt_to", "max", "min", "mul",
    "mulhi", "name", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "polygamma", "population_count",
    "pow", "real", "reciprocal", "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt",
    "select_n", "sharding_constraint", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
)  # fmt: skip
