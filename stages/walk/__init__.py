"""The walk over the blocks, forwards and backwards: hidden states, statistics of inputs, salience, pruned weights."""
