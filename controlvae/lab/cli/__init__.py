"""The command line: glue, and no logic. Commands import what they need, so that --help is quick."""
