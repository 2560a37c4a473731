"""The agent service: gateway, router, data proxy and worker, each a process of its own."""
