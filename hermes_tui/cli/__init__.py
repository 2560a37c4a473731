"""The commands of ``hermes-tui``; each module is imported when its command is used."""
