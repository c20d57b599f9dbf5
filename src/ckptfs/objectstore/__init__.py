"""Object stores: one interface (:mod:`ckptfs.objectstore.base`), adapters behind it, wrappers around it.

Knows nothing of files, journals or mounts. May import only the foundation (errors, types, limits, env, log, metrics).
"""
