# Power cuts under file systems on arrays of more members, and btrfs on a mirror (cuts.sh says how they are made).
. /scenarios/common.sh
cuts=3
. /scenarios/cuts.sh

one cache raid10 "a b c" ext4
one cache raid6 "a b c d" xfs
one cache raid1 "a b" btrfs
