"""The guard inside others' frameworks: one contract, and one rig for each framework's real package.

These tests run in environments of their own (``make test-frameworks``): not all frameworks can be installed together.
"""
