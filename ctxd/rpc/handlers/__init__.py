"""One module a method family: decode is done, call one service, hand back its answer."""
