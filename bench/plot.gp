# gnuplot -c plot.gp COLUMNS OUT.svg WHAT: the columns of chart.py as one panel, 800 pixels wide.
# Greys and hues of middling lightness on no background, so that it reads on light and dark pages.
columns = ARG1
titled = system(sprintf("sed -n '1s/^# //p' '%s'", columns))
names = system(sprintf("sed -n 2p '%s' | tr ' \\t' '_ '", columns))
set terminal svg size 800, 460 dynamic font "sans-serif,14"
set output ARG2
set datafile separator "\t"
set datafile missing "?" columnheaders
set logscale xy
set grid linetype 1 linecolor rgb "#80808060" linewidth 0.4
set xtics ("8 B" 8, "128 B" 2**7, "2 KiB" 2**11, "32 KiB" 2**15, "512 KiB" 2**19, "8 MiB" 2**23, \
    "128 MiB" 2**27)
set tics nomirror textcolor rgb "#808080"
set format y "%g"
set autoscale xfix
set border 3 linecolor rgb "#808080"
set title titled textcolor rgb "#808080"
set xlabel "message" textcolor rgb "#808080"
set ylabel ARG3 textcolor rgb "#808080"
set key outside right center Left reverse textcolor rgb "#808080" samplen 2 spacing 1.4
set style data linespoints

hues = "#3f8fd0 #1f4f8f #8a6fb0 #c58fd8 #209090 #a07850"
is_ours(i) = word(names, i)[1:5] eq "Tutti"
hue(i) = is_ours(i) ? (word(names, i) eq "Tutti" ? "#e05a2b" : "#2fa36b") : word(hues, 1 + (i - 2) % words(hues))
plot for [i = 2:words(names)] columns using 1:i title columnheader(i) \
    linewidth (is_ours(i) ? 3.5 : 1.6) pointtype 7 pointsize (is_ours(i) ? 0.5 : 0.3) linecolor rgb hue(i)
