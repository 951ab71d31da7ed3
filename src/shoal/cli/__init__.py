"""The command line: what a person types. Commands import what they need when they run, so help is instant."""
