#!/usr/bin/env bash
# Shows how a rank's work overlaps, from the trainer's --trace file: how long the disk, copies, collectives,
# forward and backward, and AdamW were busy in a step, how much of the disk's time the others overlapped, and
# for how much of a step several were busy at once. A step lasts from one start of AdamW to the next. With
# PICTURE (.svg or .png) it also draws the last step, which needs gnuplot.
#   dev/trace_lanes.sh TRACE [PICTURE [TITLE]]      RANK=1 shows rank 1 instead of rank 0
set -eu
fail() { echo "trace_lanes.sh: $*" >&2; exit 1; }
[ $# != 0 ] || fail 'usage: dev/trace_lanes.sh TRACE [PICTURE [TITLE]]'
trace=$1 picture=${2:-} title=${3:-}
[ -r "$trace" ] || fail "$trace cannot be read"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names='reads,writes,copies to the host,copies to the device,collectives,forward and backward,AdamW'

# Writes lines "SECONDS LANE CHANGE" in chronological order; lane 0: the trainer starts AdamW. While the
# trainer or AdamW waits, its lane is far below 0, so that this time does not count as computation.
awk -F'"' -v process=$((${RANK:-0} + 1)) '
    BEGIN {
        lane["read"] = 1; lane["write"] = 2; lane["to host"] = 3; lane["to device"] = 4
        lane["gather"] = lane["reduce"] = 5; lane["forward"] = lane["backward"] = 6; lane["update"] = 7
        waits[1] = 6; waits[5] = 7      # by thread
    }
    function number(key,    after) {
        after = length(key) + 3
        return match($0, "\"" key "\":[0-9.]+") ? substr($0, RSTART + after, RLENGTH - after) : 0
    }
    !/"ph":"X"/ || number("pid") != process { next }
    {
        from = number("ts") / 1e6; i = lane[$8]; n = 1
        if ($8 == "wait") { i = waits[int(number("tid") / 100)]; n = -1000 }
        if ($4 == "update") printf "%.6f 0 0\n", from
        else if (i) printf "%.6f %d %d\n%.6f %d %d\n", from, i, n, from + number("dur") / 1e6, i, -n
    }' "$trace" | sort -n >"$work/changes"
[ "$(grep -c ' 0 0$' "$work/changes")" -ge 3 ] || fail "$trace has fewer than three steps, too few to count"

# Goes through the changes and counts the running events of each lane. Writes the last step's bars to the file
# bars, as "LANE FROM TO" in seconds since its start.
awk -v bars="$work/bars" -v names="$names" '
    function add_bar(lane, to) {
        if (!is_last || to <= since[lane]) return
        # Closes invisible gaps to keep the picture small.
        if (ends[lane] != "" && since[lane] - ends[lane] < 0.002 * step_s) { ends[lane] = to; return }
        if (ends[lane] != "") print lane, starts[lane] - begin, ends[lane] - begin >bars
        starts[lane] = since[lane]; ends[lane] = to
    }
    NR == FNR {
        if (!$2) { if (!steps++) first = $1; last_begin = last; last = $1 }
        next
    }
    FNR == 1 { begin = last_begin; step_s = last - last_begin }
    {
        from = now; now = $1
        if (from >= first && now <= last) {
            n = 0
            for (i = 1; i <= 7; i++) if (was[i]) { busy[i] += now - from; n++ }
            together[n] += now - from
            if (!was[1] && !was[2] && !was[6] && !was[7]) idle_s += now - from
            if (was[1] || was[2]) {
                disk_s += now - from
                if (was[6]) under_pass += now - from
                else if (was[7]) under_adamw += now - from
                else if (was[3] || was[4] || was[5]) under_others += now - from
            }
        }
        if (!$2) {
            for (i = 1; i <= 7; i++) { if (was[i]) add_bar(i, now); since[i] = now }
            is_last = now == last_begin
            next
        }
        open[$2] += $3
        is = open[$2] > 0
        if (is && !was[$2]) since[$2] = now
        if (!is && was[$2]) add_bar($2, now)
        was[$2] = is
    }
    END {
        split(names, name, ",")
        for (i = 1; i <= 7; i++) if (ends[i] != "") print i, starts[i] - begin, ends[i] - begin >bars
        all = last - first; n = steps - 1
        printf "%d steps of %.3f s on average; busy per step:\n", n, all / n
        for (i = 1; i <= 7; i++)
            if (busy[i]) printf "  %-22s %7.3f s %5.0f %%\n", name[i], busy[i] / n, 100 * busy[i] / all
        if (!disk_s) exit
        printf "the disk is busy for %.3f s per step. During this time forward or backward runs for ",
            disk_s / n
        printf "%.0f %%,\nelse AdamW for %.0f %%, else a copy or a collective for %.0f %%,\n",
            100 * under_pass / disk_s, 100 * under_adamw / disk_s, 100 * under_others / disk_s
        printf "and nothing else for %.0f %%\n",
            100 * (1 - (under_pass + under_adamw + under_others) / disk_s)
        printf "disk, forward and backward, and AdamW are all idle for %.3f s per step\n", idle_s / n
        printf "share of a step with n of them busy at once:"
        for (i = 0; i <= 7; i++) printf "%s %d: %.0f %%", i ? "," : "", i, 100 * together[i] / all
        print ""
    }' "$work/changes" "$work/changes"

[ -n "$picture" ] || exit 0
command -v gnuplot >/dev/null || fail 'gnuplot is missing: apt-get install gnuplot-nox'
case $picture in
    *.svg) terminal='svg noenhanced size 900,260 font "DejaVu Sans,12" background "white"' ;;
    *.png) terminal='pngcairo noenhanced size 900,260 font "DejaVu Sans,12" background "white"' ;;
    *) fail "$picture must end in .svg or .png" ;;
esac
# Writes lines "ROW LANE FROM TO", the first lane on top; unused lanes get no row.
lanes=$(cut -d' ' -f1 "$work/bars" | sort -u | wc -l)
tics=$(sort -n -k1,1 -s "$work/bars" | awk -v lanes="$lanes" -v names="$names" -v rows="$work/rows" '
    BEGIN { split(names, name, ","); row = lanes + 1 }
    $1 != lane { lane = $1; row--; printf "%s\"%s\" %d", row < lanes ? ", " : "", name[lane], row }
    { print row, $0 >rows }')
gnuplot - <<END || fail "gnuplot could not draw $picture"
set terminal $terminal
set output "$work/picture"
set title "$title"; set xlabel "seconds since AdamW's start"; unset key
set border 1 lc rgb "#555555"; set tics nomirror out; set grid xtics lc rgb "#dddddd" lt 1
set xrange [0:*] noextend; set yrange [0.4:$lanes.6]
set ytics scale 0 ($tics)
array colors[7] = [0x56b4e9, 0x0072b2, 0xcc79a7, 0x882255, 0xe69f00, 0x009e73, 0xd55e00]
set style fill solid 1 noborder
plot "$work/rows" using 3:1:3:4:(\$1 - 0.38):(\$1 + 0.38):(colors[int(\$2)]) \
    with boxxyerror lc rgb variable
END
mv "$work/picture" "$picture"
