"""The client for the Agent Client Protocol: a program that ralph starts for each turn."""
