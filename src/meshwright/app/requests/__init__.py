"""One frozen request per verb: what may be asked, by which rules, in which words."""
