"""Any agent that speaks the Agent Client Protocol: the client program that ralph starts for a turn."""
