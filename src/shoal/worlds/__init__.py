"""Where workers live: `VirtualWorld` (virtual time, modelled devices and links) and `ProcessWorld` (real sockets).

Both implement `shoal.world.World`. Nobody below the caller of a worker imports this room.
"""
