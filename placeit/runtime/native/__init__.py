"""Running plans without the interpreter: a compiled loop for each lane, over the rules of the simulator."""
