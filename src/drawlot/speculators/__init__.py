"""Where drafts come from: one file a method."""
