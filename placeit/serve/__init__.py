"""Models on ports of HTTP and gRPC, for clients of the Open Inference Protocol.

May import ``report`` and all below it. Read :mod:`placeit.serve.service` first: both protocols go through it. It needs the
extra ``serve``; a command checks that before it imports :mod:`placeit.serve.network`.
"""
