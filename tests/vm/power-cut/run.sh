# Power cuts under file systems on arrays (cuts.sh says how they are made).
. /scenarios/common.sh
. /scenarios/cuts.sh

one log raid1 "a b" ext4
one cache raid1 "a b" xfs
one cache raid5 "a b c" ext4
