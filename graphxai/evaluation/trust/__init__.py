"""How far an explanation can be trusted: signs with their evidence."""
