"""The built-in agent: a program of its own, `python -m ralph.agent`, that works on a prompt with any model. Nobody in
ralph imports it: it is started like every other agent, and what it prints is read."""
