//! Being written by the helper `drv`: see /tmp/braid/SEAMS.md, addendum 03:15.
