"""The built-in agent: a program of its own, run as `python -m ralph.agent`, that works on a prompt with any model.

Nobody in ralph imports it: ralph starts it as it starts every other agent, and reads what it prints.
"""
