# gnuplot -c plot.gp COLUMNS OUT.svg: the columns of `compare --columns` as one panel a placement.
# Greys and hues of middling lightness on no background, so that it reads on light and dark pages.
columns = ARG1
panels = system(sprintf("grep -v '^#' %s | cut -f1,2 | sort -u -k1,1n -k2,2r | tr '\\t' ':' | tr '\\n' ' '", columns))
set terminal svg size 380 * words(panels), 400 dynamic enhanced font "sans-serif,13"
set output ARG2
set datafile separator "\t"
set datafile missing "?"
set logscale xy
set xrange [6:1e8]
set xtics ("8" 8, "64" 64, "1K" 1024, "8K" 8192, "64K" 65536, "1M" 1048576, "16M" 16777216)
set xtics rotate by -45 textcolor rgb "#808080"
set ytics textcolor rgb "#808080"
set format y "%.0s %cs"
set border 3 linecolor rgb "#808080"
set tics nomirror
set grid linecolor rgb "#808080" linewidth 0.3
set yrange [2e-8:0.5]
set key top left Left reverse textcolor rgb "#808080" samplen 2
set xlabel "bytes" textcolor rgb "#808080"

title_of(panel) = sprintf("%s ranks, %s", panel[1:strstrt(panel, ":") - 1], \
    panel[strstrt(panel, ":") + 1:*] eq "oversubscribed" ? "2 cores" : panel[strstrt(panel, ":") + 1:*])
rows(panel, buffers) = sprintf("< awk -F'\\t' -v p='%s' -v b='%s' '!/^#/ && $1 \":\" $2 == p && $3 == b' %s", \
    panel, buffers, columns)

set multiplot layout 1, words(panels)
do for [i = 1:words(panels)] {
    panel = word(panels, i)
    set title title_of(panel) textcolor rgb "#808080"
    plot rows(panel, "any") using 4:($8 * 1e-6) title "Gloo" with lines lw 1.5 lc rgb "#a07850", \
         rows(panel, "any") using 4:($7 * 1e-6) title "MPICH" with lines lw 1.5 lc rgb "#8a6fb0", \
         rows(panel, "any") using 4:($6 * 1e-6) title "Open MPI, best setting" with lines lw 1.5 lc rgb "#3f8fd0", \
         rows(panel, "any") using 4:($5 * 1e-6) title "Tutti" with linespoints lw 2.5 pt 7 ps 0.4 lc rgb "#e05a2b", \
         rows(panel, "symmetric") using 4:($5 * 1e-6) title "Tutti, symmetric buffers" with linespoints dt 2 lw 2 pt 7 ps 0.3 lc rgb "#2fa36b"
    unset key # one legend is enough, and the others' lines need the room
}
unset multiplot
