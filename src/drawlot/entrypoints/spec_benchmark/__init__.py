"""How much drafts save: `drawlot bench spec`."""
