"""Topics, groups, backlogs and listings."""
