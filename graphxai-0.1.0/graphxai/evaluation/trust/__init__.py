"""Measure how far an explanation can be trusted, by signs that each come with evidence."""
