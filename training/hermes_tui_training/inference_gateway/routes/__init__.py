"""The gateway's own routes: sessions, episodes, versions, status."""
