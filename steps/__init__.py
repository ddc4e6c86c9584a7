"""The steps of a task. Each file is one family; each step says why repeating it is safe."""
