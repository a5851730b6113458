"""Steps that every data rank takes by itself: what ranks send each other is not the whole gradients and weights."""
