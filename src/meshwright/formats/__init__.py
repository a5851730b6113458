"""Files of others, read and written: configs, clusters, logs, launch scripts, profiles, plans."""
