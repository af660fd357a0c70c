# gnuplot -c plot.gp COLUMNS OUT.svg WHAT: the columns of chart.py as one panel, 800 pixels wide.
# Greys of middling lightness on no background, so that it reads on light and dark pages.
columns = ARG1
line(n) = system(sprintf("sed -n '%ds/^# //p' '%s'", n, columns))
names = system(sprintf("sed -n 5p '%s' | tr ' \\t' '_ '", columns))
colours = line(4)
low = real(word(line(3), 1))
high = real(word(line(3), 2))
ratio = ARG3[1:1] eq "t" # not microseconds
set terminal svg size 800, 460 dynamic noenhanced font "sans-serif,14"
set output ARG2
set datafile separator "\t"
set datafile missing "?" columnheaders
set logscale xy
set yrange [low:high]
set grid linetype 1 linecolor rgb "#80808060" linewidth 0.4
set xtics ("8 B" 8, "128 B" 2**7, "2 KiB" 2**11, "32 KiB" 2**15, "512 KiB" 2**19, "8 MiB" 2**23, \
    "128 MiB" 2**27)
if (ratio) set ytics (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3, 4, 6)
set tics nomirror textcolor rgb "#808080"
set format y "%g"
set autoscale xfix
set border 3 linecolor rgb "#808080"
set title line(1)."\n".line(2) font ",13" textcolor rgb "#808080"
set xlabel ratio ? "larger buffer of a rank" : "message" textcolor rgb "#808080"
set ylabel ARG3 textcolor rgb "#808080"
set key outside right center Left reverse textcolor rgb "#808080" samplen 2 spacing 1.4
set style data linespoints
if (ratio) set arrow from graph 0, first 1 to graph 1, first 1 nohead linewidth 1.5 dashtype 2 linecolor rgb "#808080"

is_ours(i) = word(names, i)[1:5] eq "Tutti"
plot for [i = 2:words(names)] columns using 1:i title columnheader(i) linecolor rgb word(colours, i - 1) \
    linewidth (is_ours(i) ? 3.5 : ratio ? 2 : 1.6) pointtype (ratio ? 3 + i : 7) pointsize (is_ours(i) || ratio ? 0.5 : 0.3)
