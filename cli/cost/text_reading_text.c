/* text_reading_text.c - the text that text_reading.h lets a model read: plain prose, written for
 * it, so that figures of two runs can be compared. A change of it changes them. */
#include "cli/cost/text_reading.h"

const char text_reading_text[] =
    "The old mill stood at the end of the valley, where the river slowed down before it reached "
    "the lake. Nobody had ground any corn there for thirty years, but the wheel still turned when "
    "the snow melted in spring, and children from the village came to watch it. Their parents told "
    "them to stay away from the water. They went anyway, as their parents had done before them.\n"
    "\n"
    "One morning in April a woman arrived on a bicycle, with a small suitcase tied to the back. "
    "She asked the baker who owned the place. He wiped his hands, thought about it, and said that it "
    "belonged to the town, or perhaps to the bank, and that in either case the roof would not last "
    "another winter. \"Then I had better begin with the roof,\" she said, and bought two loaves of "
    "bread and a bag of salt.\n"
    "\n"
    "It took her most of the summer. She learned which timber was sound by knocking on it, and how "
    "to cut slate without breaking it. In the evenings she sat on the wall and wrote down what she "
    "had spent: nails, rope, paint, a new handle for the hammer. People who walked past at first "
    "only nodded. Later they stopped to give advice, most of it wrong, and in the end some of them "
    "brought their own tools. By September the rain stayed outside, and there was a light in the "
    "upper window every night.\n"
    "\n"
    "When the first sack of flour was ready, she carried it to the baker herself. He took a "
    "handful, let it run through his fingers, and smiled. It was a little too coarse, he said, but there "
    "was nothing wrong with it that a week of practice would not put right. Then he asked her "
    "what she was going to charge for it, and whether the wheel would turn in winter, too.\n";
