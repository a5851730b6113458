"""Plans as files of the frameworks that run them: one file a target."""
