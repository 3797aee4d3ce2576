"""JSON-RPC 2.0 over a unix socket: framing, typed params, errors on the wire, the client."""
