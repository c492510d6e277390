"""
External systems: what the operator keeps outside of the cluster for an object, such as an account.

An external is a reconciling handler whose driver works with the author's functions instead of
manifests. The reconcilers of the core call the driver, count its attempts, and write what it wants
to be written: the record on the object is the only memory that survives this process.

`records` are what is stored. `machine` decides the next step, and is pure. `driving` acts. `gates`
limit the calls to a system, and hold them while it is away. `failures` reads the errors of HTTP
libraries. `declaring` is the public face. Nothing of it is imported unless an external is declared.
"""
