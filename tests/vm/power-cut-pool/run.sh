# Power cuts under a file system on a volume of a pool that stands on a mirror (cuts.sh says how they are made). A snapshot is taken after
# the first of them: after each later one, what was acknowledged before the snapshot is in it, and it is a whole file system.
. /scenarios/common.sh
cuts=3
. /scenarios/cuts.sh

one log raid1 "a b" ext4 pool
one cache raid1 "a b" ext4 pool
